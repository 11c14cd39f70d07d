"""Chromium, without a window, for tests and for the pictures of the documentation."""

import contextlib
import shutil
import tempfile
import time

PATIENCE = 120  # seconds
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
    "--force-prefers-reduced-motion",
)  # fmt: skip


@contextlib.contextmanager
def chromium(width=1280, height=900):
    """A driver of a new Chromium with an empty profile; `BROWSER_LOG` has what its console says."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, Service(DRIVER))
        try:
            driver.set_page_load_timeout(PATIENCE)
            yield driver
        finally:
            driver.quit()


def resize(driver, width, height, *, phone=False, dark=False):
    """Another viewport, and the colours that the user prefers."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
    )
    colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours]})


def until(driver, script, *arguments, what=None):
    """Wait until a script returns something true, and return that."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = driver.execute_script(f"return ({script})", *arguments)
        if found:
            return found
        if time.monotonic() > deadline:
            text = driver.execute_script("return document.body.innerText")
            raise AssertionError(f"{what or script}: never\n{text[:2000]}\n{complaints(driver)}")
        time.sleep(0.05)


def complaints(driver):
    """What the console was told since the last time: errors, and refusals of the policy."""
    said = [line["message"] for line in driver.get_log("browser") if line["level"] != "INFO"]
    return [line for line in said if "willReadFrequently" not in line]  # of canvases tests read
