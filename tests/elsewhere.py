"""The modules that have no file of tests of their name, each with the reason.

Of all others there is one: `test_layers.py` holds this list against the files. A module that is new
has tests of its own, or its line here.
"""

# Nothing that a test could see is done by these.
THIN = {
    "cache_line.py": "a hint to the processor, which changes no result",
    "draw_source.py": "a protocol",
    "store/ordering_kernels.py": "a fence, which changes no result",
    "store/read_job.py": "constants",
}

# What these do shows only with others around them: by which tests, from the tests' directory on.
TOGETHER = {
    "__main__.py": ("the command's entry", "cli/test_app.py"),
    "actor_rings.py": ("rows of actors, taken", "test_env_writer.py"),
    "actor_rows.py": ("rows of actors, taken", "test_env_writer.py"),
    "buffer.py": ("calls of a buffer", "test_contracts.py", "test_against_naive.py"),
    "call_guard.py": ("whether any call may begin", "test_reentry.py", "test_threads.py"),
    "check/bookkeeping.py": ("rows, checked", "check/test_verify.py", "check/test_several_envs.py"),
    "check/content.py": ("a part of repair", "check/test_repair.py", "check/test_restoring.py"),
    "check/inspector.py": ("files in verify", "check/test_several_envs.py", "check/test_pieces.py"),
    "check/lost_rows.py": ("a part of repair", "test_slot_repairs.py"),
    "check/snapshot.py": ("what verify reads", "check/test_verify.py"),
    "checkpoint_loader.py": ("load of a buffer", "test_load.py"),
    "checkpoint_saver.py": ("save of a buffer", "test_save.py", "store/test_checkpoint.py"),
    "cli/copies.py": ("commands", "cli/test_transfer.py"),
    "compat/cpprb/resident.py": ("columns of a buffer", "compat/test_cpprb_buffer.py"),
    "compat/reagent/prioritized.py": ("calls of a buffer", "compat/test_reagent_buffer.py"),
    "convert/lerobot_videos.py": ("videos of a data set", "convert/test_lerobot.py"),
    "convert/lerobot_writer.py": ("a data set", "convert/test_lerobot.py"),
    "inspection/summary.py": ("the command stats", "cli/test_look.py"),
    "integrations/disk_batch.py": ("arrays of a buffer", "integrations/test_tianshou.py"),
    "integrations/generator_states.py": ("a part of a run", "integrations/test_run_state.py"),
    "integrations/lerobot.py": ("a data set's interface", "integrations/test_lerobot_buffer.py"),
    "integrations/lerobot_datasets.py": ("data sets", "integrations/test_lerobot_buffer.py"),
    "integrations/disk_options.py": ("options of a buffer", "integrations/test_sb3_disk.py"),
    "integrations/pickled_ring.py": ("pickles of a buffer", "integrations/test_sb3_disk.py"),
    "integrations/record_shelf.py": ("records as tensors", "integrations/test_torchrl.py"),
    "integrations/sb3_like.py": ("calls of a buffer", "integrations/test_sb3_disk.py"),
    "integrations/sizing.py": ("the command size", "cli/test_size.py"),
    "integrations/tianshou_disk.py": ("calls of a buffer", "integrations/test_tianshou.py"),
    "integrations/tianshou_leaves.py": ("arrays of a buffer", "integrations/test_tianshou.py"),
    "integrations/torchrl_checkpointer.py": ("passes calls on", "integrations/test_torchrl.py"),
    "integrations/transition_reading.py": ("reads of a ring", "integrations/test_sb3_disk.py"),
    "integrations/transition_ring.py": ("rows of a ring", "integrations/test_sb3_disk.py"),
    "owned_store_kind.py": ("stores of older APIs", "compat/test_slot_buffer.py", "test_slots.py"),
    "prioritized.py": ("calls of a buffer", "test_sample_at.py", "test_other_alpha.py"),
    "remote/run_file.py": ("who publishes", "remote/test_checkpoints.py"),
    "ray/messages.py": ("what is sent", "on_ray/test_shard.py"),
    "ray/checkpoint_calls.py": ("passes calls on", "on_ray/test_sharded_buffer.py"),
    "row_buffer.py": ("calls of a buffer", "test_evict.py", "test_contracts.py"),
    "row_reader.py": ("reads by id", "test_take_both.py", "test_take_out.py"),
    "sampling/row_index_kernels.py": ("kernels of the index", "sampling/test_row_index.py"),
    "sampling/window_kernels.py": (
        "kernels of windows", "sampling/test_window.py", "sequences/test_windows_against_naive.py",
    ),
    "sequence_source.py": ("passes calls on", "sequences/test_sequences.py"),
    "sequence_view.py": ("one view", "sequences/test_sequences.py", "test_resume_prefetch.py"),
    "session.py": ("the life of a buffer", "test_closing.py", "test_resume.py"),
    "slot_table_kind.py": ("stores of slots", "test_slots.py"),
    "store/batch_kernels.py": ("kernels of batches", "test_batch_reader.py", "test_take_both.py"),
    "store/column.py": ("what columns share", "store/test_packed_column.py"),
    "store/native.py": ("C functions for kernels", "store/test_read_kernels.py"),
    "store/raw_column.py": ("rows of a field", "store/test_drift.py", "store/test_spare_files.py"),
    "store/store.py": ("the life of a store", "test_closing.py", "store/test_durability.py"),
    "store_kind.py": ("what a buffer accepts", "test_load.py", "test_bad_input.py"),
    "transition_source.py": ("passes calls on", "test_contracts.py"),
    "union_member.py": ("members of a union", "test_union.py", "test_union_twin.py"),
    "union_prefetchers.py": ("the prefetcher of a union", "test_union.py"),
    "view/store_look.py": ("what a page shows", "view/test_server.py", "view/test_comparison.py"),
}  # fmt: skip
