BEGIN TRANSACTION;
CREATE TABLE measurements (
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        data TEXT NOT NULL,
        created REAL NOT NULL,
        PRIMARY KEY (run_id, kind, name)
    );
INSERT INTO "measurements" VALUES(1,'variant','default','{"ms":3}',1007.0);
INSERT INTO "measurements" VALUES(2,'variant','default','{"ms":3}',1014.0);
CREATE TABLE results (
        task_id INTEGER PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
        run_id INTEGER REFERENCES runs (id) ON DELETE SET NULL,
        configuration TEXT,
        default_s REAL NOT NULL,
        tuned_s REAL NOT NULL,
        speedup_low REAL NOT NULL,
        speedup_high REAL NOT NULL,
        verification TEXT NOT NULL,
        trials INTEGER NOT NULL,
        created REAL NOT NULL
    );
INSERT INTO "results" VALUES(1,1,'{"peel":true,"tile":[4,4]}',2.0,1.0,1.9,2.1,'float64 NumPy',64,1006.0);
INSERT INTO "results" VALUES(2,2,'{"peel":true,"tile":[4,4]}',2.0,1.0,1.9,2.1,'float64 NumPy',64,1013.0);
CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid TEXT NOT NULL UNIQUE,
        created REAL NOT NULL,
        program TEXT NOT NULL,
        program_digest TEXT NOT NULL,
        target TEXT NOT NULL,
        compiler TEXT NOT NULL,
        options TEXT NOT NULL,
        options_digest TEXT NOT NULL,
        seed INTEGER NOT NULL,
        status TEXT NOT NULL,
        finished REAL,
        owner TEXT NOT NULL DEFAULT ''
    );
INSERT INTO "runs" VALUES(1,'aad098d4fa134b66925573158c2b59e0',1001.0,'m.mlir','p','cpu','3.13.0','{"effort":"quick","seed":3}','o',3,'finished',1008.0,'');
INSERT INTO "runs" VALUES(2,'e7063d486dff400aad2d3e198009a2a0',1009.0,'m.mlir','p','cpu','3.13.0','{"effort":"quick","seed":3}','o',3,'interrupted',1015.0,'');
CREATE TABLE state (
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (run_id, key)
    );
INSERT INTO "state" VALUES(1,'search','{"asked":[1,2]}');
INSERT INTO "state" VALUES(2,'search','{"asked":[1,2]}');
CREATE TABLE tasks (
        id INTEGER PRIMARY KEY,
        workload_key TEXT NOT NULL,
        target TEXT NOT NULL,
        compiler TEXT NOT NULL,
        flags TEXT NOT NULL,
        workload TEXT NOT NULL,
        name TEXT NOT NULL,
        default_s REAL, space TEXT,
        UNIQUE (workload_key, target, compiler, flags)
    );
INSERT INTO "tasks" VALUES(1,'2237e9348f79de672b86','cpu','3.13.0','f','{"attributes":[["a","b"]],"body":"b","bytes":0,"dims":[["m",64,false],["n",32,false],["k",16,true]],"element_types":["f32","f32","f32"],"encoding":"","flops":0,"fused":[],"kind":"contraction","layout":["(d0,d1,d2)->(d0,d2)"],"root":""}','contraction 64x32x16 f32',0.25,'{"pipeline":"P"}');
INSERT INTO "tasks" VALUES(2,'2f9a65b7f90de6966dc7','cpu','3.13.0','f','{"attributes":[["a","b"]],"body":"b","bytes":0,"dims":[["m",128,false],["n",32,false],["k",16,true]],"element_types":["f32","f32","f32"],"encoding":"","flops":0,"fused":[],"kind":"contraction","layout":["(d0,d1,d2)->(d0,d2)"],"root":""}','contraction 128x32x16 f32',0.25,'{"pipeline":"P"}');
CREATE TABLE trials (
        id INTEGER PRIMARY KEY,
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        ordinal INTEGER NOT NULL,
        configuration TEXT NOT NULL,
        status TEXT NOT NULL,
        time_s REAL,
        samples TEXT NOT NULL,
        message TEXT NOT NULL,
        binary_digest TEXT NOT NULL,
        origin TEXT NOT NULL,
        phase_s TEXT NOT NULL,
        created REAL NOT NULL,
        UNIQUE (run_id, task_id, configuration)
    );
INSERT INTO "trials" VALUES(1,1,1,0,'{"tile":[0,8]}','ok',0.001,'[]','','','','{}',1002.0);
INSERT INTO "trials" VALUES(2,1,1,1,'{"tile":[1,8]}','ok',0.002,'[]','','','','{}',1003.0);
INSERT INTO "trials" VALUES(3,1,1,2,'{"tile":[2,8]}','ok',0.003,'[]','','','','{}',1004.0);
INSERT INTO "trials" VALUES(4,1,1,3,'{"brackets":"[1, 2]","digits":"12","empty":[],"false":false,"huge":1208925819614629174706176,"int_one":1,"negative":-5,"nothing":"","one":[7],"quote''\"; DROP TABLE trials; --":"a\"b\\c\n\u0000","text":"DoubleTilingExpert","true":true,"tuple":[1,2,3],"zero":0}','ok',0.5,'[]','','','','{}',1005.0);
INSERT INTO "trials" VALUES(5,2,2,0,'{"tile":[0,8]}','ok',0.001,'[]','','','','{}',1010.0);
INSERT INTO "trials" VALUES(6,2,2,1,'{"tile":[1,8]}','ok',0.002,'[]','','','','{}',1011.0);
INSERT INTO "trials" VALUES(7,2,2,2,'{"brackets":"[1, 2]","digits":"12","empty":[],"false":false,"huge":1208925819614629174706176,"int_one":1,"negative":-5,"nothing":"","one":[7],"quote''\"; DROP TABLE trials; --":"a\"b\\c\n\u0000","text":"DoubleTilingExpert","true":true,"tuple":[1,2,3],"zero":0}','ok',0.5,'[]','','','','{}',1012.0);
CREATE INDEX runs_to_resume ON runs (program_digest, target, compiler, options_digest);
CREATE INDEX trials_in_order ON trials (run_id, ordinal);
CREATE INDEX trials_of_task ON trials (task_id);
CREATE INDEX results_of_run ON results (run_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',2);
COMMIT;
