"""The gateway. OpenAI's clients call it, as a server or inside of episodes; it calls policies."""
