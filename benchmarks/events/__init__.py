"""Generated session events: what the tests of the report, its benchmark and a trial run read.

They are no part of the package that is installed: nobody needs made-up events beside a proxy.
"""
