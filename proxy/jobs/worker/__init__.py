"""The runtime of deferred work: claims jobs and batches under leases and takes each one step further.

    loop         the worker: what is claimed, how much at once, how it stops
    packer       pools to batches
    batches      one batch, step by step: submission, polling, refusals, cleaning
    settlement   result files to jobs
    single       jobs that one call carries: direct and flex
    background   jobs that OpenAI carries as a background response
    rescue       the direct call beside a tier that is late
    turns        how many single calls an upstream takes at once
    kit          what all of them work with
    providers    the upstreams' APIs
    ports        what others tell the worker and hear from it

Every step is written before the next begins, so that whoever claims the subject after a crash goes on from
there. What is legal says `proxy.jobs.transitions`; what to do about a miss say the pure modules beside it.
"""
