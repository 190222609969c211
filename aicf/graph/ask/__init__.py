"""Questions about choices: what would it take to get another kernel, and where does the choice change?"""
