"""One fair order over several replicas of the service: what to tell the others, and what follows from what they told.

Held requests and heaps stay where they are. Replicas tell each other, once in a period and through a store: what each
tenant has had and has waiting, what is inside each endpoint, what waits in each class. Of that each works out its part
of every endpoint's slots.
"""
