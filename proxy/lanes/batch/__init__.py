"""The batch lane: deferrable requests become jobs, and callers meet their answers.

plan        whether a request can be deferred, by which tiers, how its caller is met; pure
pace        how long tiers take and whether the store answers, known without asking
deferring   both together, for whoever decides
identity    who a caller is, without keeping its credentials
intake      a decided request to a job; pure
lane        jobs accepted, tickets given, callers held
hold        one caller that is held
answers     what is told about a job, as heads and bodies; pure
background  the same in the words of the Responses API; pure
job_api     callers' questions about their jobs
parents     requests that continue a deferred response
"""
