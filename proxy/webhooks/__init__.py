"""Webhooks: telling configured addresses what ended, signed, and again for a day until they have it.

event, signing, schedule, health   pure: what is told, how it is signed, when again, whether at all
sender                             calls, and says what became of it

Owns no list of what is to be told: that lies with jobs and batches, in their stores. Calls nothing but the
URLs of the policies in force, and follows no redirect.
"""
