"""Where gpuledger meets other tools: pytest, notebooks, loggers."""
