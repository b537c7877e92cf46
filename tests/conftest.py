def pytest_addoption(parser):
    parser.addoption("--device", choices=["cuda"], help="run the laws on this device too: it takes an NVIDIA GPU and CuPy (tests/test_device.py)")
