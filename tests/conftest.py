def pytest_addoption(parser):
    parser.addoption("--device", choices=["cuda"], help="run the laws there too, on an NVIDIA GPU with CuPy (tests/test_device.py)")
