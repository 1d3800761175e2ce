"""The pages for people: read the store through `insight`, act through the same verbs as the API, answer in HTML.

    browser ─▶ table.py (which page) ─▶ its view (plain data) ─▶ its template + its texts ─▶ HTML

`table.py` lists the sections; each section is one module with its view functions. docs/adr/0024-pages.md says how to
add a page.
"""
