"""The tables of a small application: a library that lends books."""

import uuid

from django.contrib.postgres.fields import ArrayField, DateRangeField
from django.contrib.postgres.indexes import GinIndex
from django.db import models


class Author(models.Model):
    name = models.CharField(max_length=80, unique=True)


class Book(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    author = models.ForeignKey(Author, on_delete=models.CASCADE, related_name="books")
    title = models.CharField(max_length=200, db_index=True)
    price = models.DecimalField(max_digits=12, decimal_places=4, default=0)
    copies = models.PositiveIntegerField(default=1)
    tags = ArrayField(models.CharField(max_length=20), default=list)
    extra = models.JSONField(default=dict)
    lent = DateRangeField(null=True)
    changed = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(price__gte=0), name="price_not_negative")]
        indexes = [GinIndex(fields=["tags"])]
