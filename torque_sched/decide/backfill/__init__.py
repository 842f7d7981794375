"""The rules of backfilling: who may hold a reservation, whether it improves, and who may go ahead."""
