"""The best slots of a query: screened, scanned, ranked."""
