"""Many trials: order, budgets, servers, resume. ``local`` runs them on this machine."""
