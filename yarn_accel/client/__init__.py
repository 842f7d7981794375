"""What runs inside a mapper: standard library only, Python 3.8."""
