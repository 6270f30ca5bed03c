"""PyTorch's own module samples on the device, eager and compiled, for the modules that embedding models use."""

from __future__ import annotations

from torch.testing._internal.common_device_type import PrivateUse1TestBase, instantiate_device_type_tests
from torch.testing._internal.common_modules import TrainEvalMode, modules
from torch.testing._internal.common_utils import TestCase, parametrize

from tests.opinfo import expected
from tests.opinfo.modules import MODULES, module_outcomes
from tests.opinfo.samples import DTYPES, MODES, standing

EXPECTED = expected.read()


class TestModules(TestCase):
    @modules(map(standing, MODULES), allowed_dtypes=DTYPES, train_eval_mode=TrainEvalMode.eval_only)
    @parametrize("mode", MODES)
    def test_values(self, device, dtype, module_info, training, mode):
        found = dict(module_outcomes(module_info, dtype, mode, device))
        key = (module_info.name, mode, str(dtype).removeprefix("torch."))
        assert expected.deviations(EXPECTED.get(key, {}), found) == []


PrivateUse1TestBase.set_test_configs()
instantiate_device_type_tests(TestModules, globals(), only_for="privateuse1")
