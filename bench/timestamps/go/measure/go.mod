module timestamps/measure

go 1.23
