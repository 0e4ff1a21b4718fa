"""The public names of the PyTorch face stay as they are."""

from surface.describe import TEXTS, path


def test_the_surface_of_the_torch_face_is_as_it_was() -> None:
    """`make surface` writes it anew, for a change that is meant."""
    assert [*TEXTS["torch"]()] == path("torch").read_text().splitlines()
