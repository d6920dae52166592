"""Memory dialogue: facts about people come up in a long talk, change and end; later they are asked for."""
