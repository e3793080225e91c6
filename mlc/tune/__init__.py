"""Schedule search, cost model and tuning database: the room where `schedule_for`'s `db` will be filled. Nothing is tuned yet."""
