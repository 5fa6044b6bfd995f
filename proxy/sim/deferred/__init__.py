"""Work that the simulated provider does later: files, batches, background responses and the flex tier.

It owns what is kept between requests (files, batches, stored responses), the schedules by which batches and
background responses come about, and the endpoints that show them. It refuses to generate answers: a line of
a batch is read and answered by the same code as a live call.
"""
