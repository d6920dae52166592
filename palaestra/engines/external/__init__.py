"""Engines whose servers are other programs: sessions call them, and they call vLLM and SGLang over HTTP."""
