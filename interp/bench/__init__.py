"""How long knockout maps and long prompts take: several ways of computing the same numbers, side by side."""
