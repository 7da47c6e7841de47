"""`outbox-publisher demo`: the whole way of an event on one machine, with the accidents that an outbox is for.

The one part that knows both packages: it plays the shop that publishes and the shipping service that consumes.
"""
