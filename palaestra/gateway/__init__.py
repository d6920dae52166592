"""The gateway: language models behind OpenAI's chat protocol, as a server and as a program that plays episodes."""
