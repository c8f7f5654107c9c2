"""A small chat gateway: two channels, one agent, tools that run in parallel, approval cards, background work.

It is an ordinary application. It knows OpenTelemetry and nothing of otelctx, and it has three faults that real gateways
have, each marked ``The fault`` where it is:

* ``agent.py`` hands tools to a thread pool without their context, and ``session.py`` falls back to an environment
  variable that the last turn wrote: an approval card is shown to the wrong channel.
* ``processes.py`` keeps by its name whom to wake when a background process has ended: the wrong channel is woken.
* ``jobs.py`` runs a cron job in a worker's process, and ``tasks.py`` asks the environment whose task this is: the job
  closes the worker's task.
"""
