"""The browser of the tests: the one of $HOLDFAST_TEST_BROWSER, or `chromium` on the path, or the pinned one."""
