"""The public names of the PyTorch face stay as they are."""

from surface.describe import TEXTS, path


def test_the_surface_of_the_torch_face_is_as_it_was() -> None:
    """`make surface` writes the file anew, for an intended change."""
    assert [*TEXTS["torch"]()] == path("torch").read_text().splitlines()
