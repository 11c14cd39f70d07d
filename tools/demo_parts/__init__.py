"""Parts of the demonstration.

===============  ==================================================================================
`director`       the whole, in order: record, kill, compare, resume, compare, report
`recorder`       process 1: plays Pong and trains on it until it is killed
`resumer`        process 2: loads a checkpoint and goes on with what process 1 recorded after it
`training`       the loop that both run: add, save, sample, update priorities
`pong`           where process 1's steps come from
`journal`        how both acknowledge what they did: records in a pipe
`processes`      starting, following and killing them
`evidence`       what the journals and the store say about each other
`conclusion`     the figures, the claims, and where to look
`report`         how figures, tables and progress are shown
`sheet`          the contact sheet
`paths`          where a run leaves what
`machines`       ``tools/demo --machines``, the whole: three Ray nodes, deaths, a bucket, a resume
`players`        its actors, and every row compared with what they played
===============  ==================================================================================
"""
