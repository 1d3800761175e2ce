"""Other systems, at the edge: each module needs a package that Holdfast does not install. Nothing inside uses them."""
