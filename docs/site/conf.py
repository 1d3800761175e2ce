"""Settings of Sphinx for the site; `build.py` says which pages it gets."""

from holdfast.version import __version__

project = "Holdfast"
author = "The Holdfast maintainers"
release = version = __version__
copyright = "The Holdfast maintainers"

extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
myst_heading_anchors = 5
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = False

smartquotes = False  # docstrings quote code
html_theme = "furo"
html_title = "Holdfast"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_copy_source = True  # for llms.txt
html_show_sourcelink = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#0b5c66", "color-brand-content": "#0b6b77"},
    "dark_css_variables": {"color-brand-primary": "#5cc8d4", "color-brand-content": "#6fd3de"},
}
pygments_style = "a11y-light"
pygments_dark_style = "github-dark"
suppress_warnings = ["misc.highlighting_failure", "myst.xref_missing"]  # build.py checks every link of what was built
