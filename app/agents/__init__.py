"""Tools for agents, by the Model Context Protocol: `stagetree mcp` serves them over stdio, the API at `/mcp`.

They use the REST client alone, so scopes, projects, budgets and refusals are those of the API. `tools` lists them.
"""
