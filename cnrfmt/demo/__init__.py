"""The demo: a recommender trained on real grocery orders, killed half-way, restored, and compared.

Imported only on use: it needs the extra ``demo``. Start at `cnrfmt.demo.run.run_demo`.
"""
