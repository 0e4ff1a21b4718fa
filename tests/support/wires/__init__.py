"""Conversations of older clients with older daemons, recorded, and what replays them."""
