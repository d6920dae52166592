"""Engines that other programs run: servers of vLLM and SGLang, reached over HTTP."""
