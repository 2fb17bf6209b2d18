"""The operator book: what each distinct operator costs in isolation, and what models are made of."""
