"""Dr. GRPO. When GRPO's division by the deviation over-weights very easy and very hard tasks, or when lengths of
failed answers grow.
"""
