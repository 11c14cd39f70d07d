"""A local web page over live stores and checkpoints: `diskreplay view`.

`shown_stores` finds the stores, `store_reader` reads one of them, a `store_look` are its figures of
one moment, and `app` answers a browser, behind `guard`. The scripts of the page are in `static/`;
those that it shares with the report are in `diskreplay/pictures/page/`.
"""
