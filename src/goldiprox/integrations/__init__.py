"""GoldiProx in the frameworks people use; a module each, imported only when you import it.

``from goldiprox.integrations import huggingface`` (or ``accelerate``, ``lightning``, ``hub``).
"""
