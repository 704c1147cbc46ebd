"""The figures of flbench: figures of matplotlib that a notebook shows."""

from io import BytesIO
from typing import Final

from matplotlib.figure import Figure

DOTS: Final = 144  # per inch, twice the size at which a notebook shows the picture


class Picture(Figure):
    """A figure that is not part of pyplot's state, and that notebooks show as a picture.

    IPython shows a plain `Figure` only in sessions that have imported pyplot.
    """

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture as PNG, and the size in pixels at which to show it."""
        content = BytesIO()
        self.savefig(content, format="png", dpi=DOTS)
        width, height = self.get_size_inches() * DOTS / 2
        return content.getvalue(), {"width": round(width), "height": round(height)}
