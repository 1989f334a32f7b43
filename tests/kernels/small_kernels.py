"""Small sizes for operations of every kind."""

# A small size for every dimension that a kind can have.
SMALL = {
    "m": 5, "n": 7, "k": 12, "slices": 3, "batch": 2, "h": 8, "w": 9, "ci": 3, "co": 4,
    "kh": 3, "kw": 2, "sh": 2, "sw": 1, "dh": 1, "dw": 2, "ph": 1, "pw": 2, "k1": 6, "k2": 4,
}  # fmt: skip
