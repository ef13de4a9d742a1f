"""Entry point of `python -m proxy`, the same as `reauth-proxy`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
