"""PyTorch's own operator samples on the device, eager and compiled, for the operators in ``core.txt``.

Values are compared with float64 on the CPU within what DL16 rounding allows (``tolerance``).  An ordinary run takes a
few samples of each operator in fp16; ``make opinfo`` takes all of them in every dtype that the device stores.
"""

from __future__ import annotations

from torch.testing._internal.common_device_type import PrivateUse1TestBase, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, parametrize

from tests.opinfo import expected
from tests.opinfo.samples import CORE, DTYPES, MODES, outcomes, standing

EXPECTED = expected.read()


class TestOperators(TestCase):
    @ops(map(standing, op_db), allowed_dtypes=DTYPES)
    @parametrize("mode", MODES)
    def test_values(self, device, dtype, op, mode):
        found = dict(outcomes(op, dtype, mode, device))
        key = (op.full_name, mode, str(dtype).removeprefix("torch."))
        assert expected.deviations(EXPECTED.get(key, {}), found) == []


PrivateUse1TestBase.set_test_configs(op_allowlist=CORE)
instantiate_device_type_tests(TestOperators, globals(), only_for="privateuse1")
PrivateUse1TestBase.set_test_configs()
