"""The farm: a node broker, its zygotes, and the client that asks them for kernels.

In the order in which a kernel travels::

    client      submits a request, gets a future; never imports Ray
    launch      finds the user's broker, or starts it under a lock
    places      the private directories and the broker's socket
    wire        frames: length, msgpack, one version number
    server      the plain process that hosts a broker (part 3: a Ray actor does)
    broker      joins messages, the plan and the runner; no policy of its own
    events      what happens to the plan, and what the plan wants done
    plan        the scheduler: a state machine without I/O (jobs, choice, recall, limits: its parts)
    runner      what a broker needs of whoever compiles, and a double for tests
    zygotes     the real runner: one zygote per toolchain and environment
    zygote      the process that forks one child per kernel (child: what it runs)
    local       the last resort: compile in this process
    errors      everything raised here

Between the nodes of a cluster::

    cluster_wire    names of actors, messages and batches
    cluster_events  what happens to a coordinator's plan, and what that wants done
    cluster_plan    the cluster's scheduler: a state machine without I/O (cluster_ledger, _jobs,
                    _pool, _roster, _recall: its parts)
    coordination    joins nodes' messages and that plan; no policy of its own
    coordinator     the Ray actor around it

Importing this package imports nothing else. Nothing here imports torch, and Ray only
``coordinator`` does.
"""
