"""Figures as SVG that stands in the page. Coordinates are numbers of ours; what they mean stands beside them in HTML.

Colours are classes of the stylesheet, so that a figure is right in light and dark: h0 to h9 for groups, `plus` and
`minus` for signs.
"""
