"""One module a task: builds the requests, returns outcomes, prints nothing; `hosts/tasks` prints."""
