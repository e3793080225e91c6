import gc

import pytest

from mlc.core.collector import uncollected


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_rests_in_the_block_and_is_left_as_it_was(on):
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with pytest.raises(KeyError), uncollected():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()
